"""How long programs take, by operator, module and line: executables in the runtime, and programs in
eager."""
