"""Turns rewards into a loss: advantages, policy losses, published algorithms that combine them."""
