"""`python -m fedbench` is the same as `fedbench`."""

from fedbench.main import main

main()
