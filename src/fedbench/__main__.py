"""`python -m fedbench` is the same as `fedbench`."""

from fedbench.core.caller import end_with_torchrun

end_with_torchrun()  # the import below takes seconds, in which torchrun may die

from fedbench.cli import main  # noqa: E402

main()
