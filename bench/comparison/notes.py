"""What was tried and what the limit is, for rows that miss their target; the page shows a note only where one does.

A key stands for all rows whose names begin with it; the longest counts. docs/performance.md has the log behind them.
"""

NOTES: dict[str, str] = {
    "matmul i8": "Bytes through workgroup memory reach 500 TOP/s with B as [N, K]; turning B takes a pass. Larger blocks 492–495, "
    "deeper steps 452, B straight from memory 196–360: the reading of fragments competes with the loads, as for f16, where packing "
    "helps; packing bytes by lanes does not. Through wgpu there are no matrices of bytes.",
    "matmul f16 m128 n768 k3072": "0.3 µs above the target: one dispatch with the sum split among the subgroups of a workgroup. "
    "Splits among workgroups and their sum took 14.6 µs.",
    "matmul f32 m128": "Every workgroup measures and splits its rows before it multiplies; a 64-deep step takes about 2 µs where waiting "
    "for memory explains 0.6. Planes made by a pass of their own, other blocks and 1–6 parts were slower; see docs/performance.md.",
    "gemv f32 4096 x16 apart": "4517 GB/s, 97 % of what reading memory gives on this card.",
    "gemv": "Products that wait for one another pay about 4 µs each for the start and the end of a dispatch; block sizes and loads under "
    "way did not change that. PyTorch's f32 products take 18.3 µs each, 3.67 TB/s.",
    "bert-base f32 b1 s128": "Three quarters of it are products of 128 rows, whose rows above miss as well. Runs of the same build took "
    "1.24–1.32 ms.",
    "bert-base f32 b1 s512": "Products of 512 rows take most of it; they are cut as those of 128 rows are.",
    "bert-base f16 b1 s128": "PyTorch's graph runs it in 0.68 ms. 84 dispatches that wait for one another take 2–4 µs each before any "
    "work; runs of the same build took 0.82–1.02 ms.",
    "bert-base f16 b32 s128": "Not yet understood: the products alone should take about 3 ms at the rates above. Epilogues with gelu, "
    "which are written as a loop over the block, are the suspect.",
}


def note(name: str) -> str | None:
    """The note on a row."""
    keys = [key for key in NOTES if name.startswith(key)]
    return NOTES[max(keys, key=len)] if keys else None
