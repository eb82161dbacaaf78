# ruff: noqa
# expect file: P11
import json

import paho.mqtt.client as mqtt
import psycopg


class Gateway:
    def __init__(self):
        self.client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        self.client.on_message = self.on_message

    def on_message(self, client, userdata, message):
        reading = json.loads(message.payload)
        with psycopg.connect("dbname=x") as conn:
            conn.execute("UPDATE meters SET total = total + %s WHERE id = %s", (reading["kwh"], reading["meter"]))

    def run(self):
        self.client.connect("mq")
        self.client.subscribe("meters/#", qos=1)
        self.client.loop_forever()


Gateway().run()
