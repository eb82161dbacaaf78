"""Intents (modes K and I): calls to outside APIs, recorded before they are sent."""
