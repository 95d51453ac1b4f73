"""Run what is missing of every experiment in conf/experiment and render it: `make
reproduce-tables`.

    python scripts/reproduce_tables.py [--scale smoke|laptop|paper] [--only fedpgvc/table2]
    [--dry-run]

Tables go to results/tables, figures to results/figures, all of it to results/report/index.html. Run
again, it only does what is missing. The work is done by fedbench.study.
"""

from fedbench.study.reproduce import main

if __name__ == "__main__":
    main()
