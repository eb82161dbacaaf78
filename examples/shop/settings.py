"""Where everything is. SQLite files in the working directory, unless the environment names servers."""

import os

DATABASE = os.environ.get("EFFECTONCE_STORE", "sqlite:///shop.db")  # or postgresql://localhost/shop
BROKER = os.environ.get("EFFECTONCE_BROKER", "sqlite:///queue.db?ack_window=20s")  # or amqp://guest:guest@localhost
PAYMENTS = os.environ.get("SHOP_PAYMENTS", "http://127.0.0.1:8001")
QUEUE = os.environ.get("SHOP_QUEUE", "orders")
LEASE = os.environ.get("SHOP_LEASE", "10s")  # how long the work of a process that died waits for the next one
