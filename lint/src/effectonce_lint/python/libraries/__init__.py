"""What is known of other people's libraries, as tables: which calls receive, ack, claim, record and show outside."""
