
J
4
ed0e56ab8b2a0ecb 6e5d320de0a84d725563caf770bbcb4b
fe9062d0fff82a66@
@@(08X(a77e7c793abc0d0c923a9afb275058e2fe57a198