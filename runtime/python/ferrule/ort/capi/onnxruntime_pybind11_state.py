"""Programs import exceptions from here."""
from ferrule.ort._exceptions import *  # pylint: disable=wildcard-import,unused-wildcard-import
