"""The commands of `minka`, one file each, imported when used. No layer below knows of the command line."""
