"""DynamoDB: records."""
