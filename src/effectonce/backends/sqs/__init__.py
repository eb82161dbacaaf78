"""Amazon SQS: the broker, over aiobotocore."""
