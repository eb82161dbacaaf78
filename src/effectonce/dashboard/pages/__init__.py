"""The views: one module per page of the menu, with the actions of its buttons."""
