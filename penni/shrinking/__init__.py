"""Phase D: remove what nothing needs, without changing any answer."""
