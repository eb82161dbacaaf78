"""Azure Service Bus: the broker, over the SDK of Microsoft."""
