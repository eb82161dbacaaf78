# ruff: noqa
# expect file: P11
import requests
from celery import shared_task

MUTATION = """
mutation CreateOrder($input: OrderInput!) {
  createOrder(input: $input) { id }
}
"""


@shared_task
def place(order):
    requests.post("https://api.example/graphql", json={"query": MUTATION, "variables": {"input": order}}, timeout=5)
