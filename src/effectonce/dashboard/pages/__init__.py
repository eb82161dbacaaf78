"""What each page shows, and what each button does."""
