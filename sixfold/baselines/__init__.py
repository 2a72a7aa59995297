"""What the Transformer is compared with. A file here registers by `modification`, as those of modifications/ do."""
