"""`python -m fedbench` is the same as `fedbench`."""

from fedbench.cli import main

main()
