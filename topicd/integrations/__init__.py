"""What lets other libraries use topicd; each module needs the library that it is named after."""
