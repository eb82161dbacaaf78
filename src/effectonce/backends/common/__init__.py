"""What several backends share: reconnecting, visibility timeouts, packets, and the AWS SDK."""
