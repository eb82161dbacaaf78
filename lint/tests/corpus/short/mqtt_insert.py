# ruff: noqa
# expect file: P11
import json, sqlite3
import paho.mqtt.client as mqtt
db = sqlite3.connect("x.db", check_same_thread=False)
def on_message(client, userdata, msg):
    d = json.loads(msg.payload)
    db.execute("INSERT INTO readings (sensor, value) VALUES (?, ?)", (d["s"], d["v"]))
    db.commit()
c = mqtt.Client()
c.on_message = on_message
c.connect("h")
c.loop_forever()
