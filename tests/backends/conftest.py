"""Servers for the brokers' own tests; those that all tests share are in `tests/conftest.py`."""
