from sixfold.cli import main

main()
