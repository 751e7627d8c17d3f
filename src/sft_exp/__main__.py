"""`python -m sft_exp`."""

from sft_exp.cli import main

main()
