# ruff: noqa
# expect file: clean
import requests


def test_order_is_created(client):
    response = requests.post("https://x.example/orders", json={})
    assert response.status_code == 201
