"""Azure Service Bus: the broker, over Microsoft's SDK."""
