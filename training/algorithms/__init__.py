"""How rewards become a loss: advantages, policy losses, and the published algorithms that combine them."""
