"""Operations over many entries of one cache, or between two."""
