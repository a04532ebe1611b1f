"""An extension of the BlockX worker: a back end for prices, a builder that counts, a writer of files."""
