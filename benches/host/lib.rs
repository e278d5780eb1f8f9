//! Nothing: the benches are all there is, and a package needs a library or a program.
