from ferrule.ort import *  # pylint: disable=wildcard-import,unused-wildcard-import
from ferrule.ort._exceptions import *  # pylint: disable=wildcard-import,unused-wildcard-import
