# ruff: noqa
import requests
class Bank:
    URL = "https://bank"
    def transfer(self, iban, amount):
        requests.post(f"{self.URL}/transfers", json=dict(iban=iban, amount=amount)).raise_for_status()
