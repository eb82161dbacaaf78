"""What several backends share: reconnecting, visibility timeouts, broker errors, and reading SQL files."""
