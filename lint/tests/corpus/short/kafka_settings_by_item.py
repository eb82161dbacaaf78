# ruff: noqa
# expect file: EO201
from confluent_kafka import Consumer
import json, pymysql
conf = dict()
conf["bootstrap.servers"] = "x"
conf["group.id"] = "g"
conf["enable.auto.commit"] = "true"
c = Consumer(conf)
c.subscribe(["a"])
db = pymysql.connect(host="h")
while True:
    m = c.poll(1)
    if m is None: continue
    with db.cursor() as cur:
        cur.execute("REPLACE INTO t (id, v) VALUES (%s, %s)", (m.key(), m.value()))
    db.commit()
