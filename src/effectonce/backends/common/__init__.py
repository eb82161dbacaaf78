"""What several backends share: reconnecting, visibility timeouts, packets, the AWS SDK, and reading SQL files."""
