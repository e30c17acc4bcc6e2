module duplex.dev/lab/pause

go 1.26.0
