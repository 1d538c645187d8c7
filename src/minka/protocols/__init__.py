"""The wire APIs, one file each: a JSON body in, typed jobs out; events in, wire objects out."""
