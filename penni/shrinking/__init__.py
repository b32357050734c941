"""Phase D: remove what nothing needs, without changing any answer."""

from penni.shrinking.report import Kept, Report, Row, Structure
from penni.shrinking.shrink import Shrunk, shrink

__all__ = ["Kept", "Report", "Row", "Shrunk", "Structure", "shrink"]
