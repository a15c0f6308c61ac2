"""What every text from outside has to be before it is stored or sent."""


def writable(text: str) -> str:
    """The text with U+FFFD in place of each half of a surrogate pair: JSON can say ``"\\ud800"``, and a broken detokenisation can make one, but no
    file, header or browser takes it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
