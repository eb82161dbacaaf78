"""Google Cloud Pub/Sub: the broker, over Google's own client."""
