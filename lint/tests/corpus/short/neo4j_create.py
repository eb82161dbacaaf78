# ruff: noqa
# expect file: P11
import json

from kafka import KafkaConsumer
from neo4j import GraphDatabase

driver = GraphDatabase.driver("bolt://db")


def main():
    consumer = KafkaConsumer("follows", group_id="f", enable_auto_commit=False)
    for record in consumer:
        follow = json.loads(record.value)
        with driver.session() as session:
            session.run("MATCH (a:User {id: $a}), (b:User {id: $b}) CREATE (a)-[:FOLLOWS]->(b)", **follow)
        consumer.commit()
