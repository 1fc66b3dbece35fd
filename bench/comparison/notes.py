"""What was tried and what the limit is, for rows that miss their target; the page shows a note only where one does.

A key stands for all rows whose names begin with it; the longest counts. The notes under docs/performance have the log behind them.
"""

NOTES: dict[str, str] = {
    "matmul i8": "Bytes through workgroup memory reach 500 TOP/s with B as [N, K]; turning B takes a pass. Larger blocks 492–495, "
    "deeper steps 452, B straight from memory 196–360: the reading of fragments competes with the loads, as for f16, where packing "
    "helps; packing bytes by lanes does not. Through wgpu there are no matrices of bytes.",
    "matmul f16 m128 n768 k3072": "0.3 µs above the target: one dispatch with the sum split among the subgroups of a workgroup. "
    "Splits among workgroups and their sum took 14.6 µs.",
    "matmul f32 m128": "Lanes load, scale and split their part of A themselves, and subgroups share K. The compiler moves all loads of the "
    "next step to the end of the loop, where they are waited for in full; see docs/performance.md.",
    "gemv f32 4096 x16 apart": "4400–4520 GB/s, 95–97 % of what reading memory gives on this card.",
    "gemv f32 4096 x16": "Reading alone takes 14.5 µs a matmul and the gap between dispatches that wait for each other 1.2–2.0 µs: 251–264 µs at "
    "best, a ratio of 1.11–1.16. The rest, 2.5 µs a matmul, is filling and emptying the cores; block sizes and loads in flight did not change it.",
    "gemv": "Matmuls that wait for one another pay about 4 µs each for the start and the end of a dispatch, 1.2–2.0 µs of it the gap itself; "
    "block sizes and loads in flight did not change that. At best a matmul would take 8.4–9.2 µs.",
    "bert-base f32 b1 s128": "Seven tenths of it are matmuls of 128 rows; 84 dispatches that wait for one another take 2–4 µs each before any work.",
    "bert-base f32 b1 s512": "Three quarters of it are matmuls of 512 rows, tiled like those of 128 rows.",
    "bert-base f16 b1 s128": "54 µs a layer in kernels: matmuls 9.5 + 6.7 + 10.1 + 9.7, whose weights come cold from memory (14 MB, 3 µs at its full "
    "rate), attention 7, norms 5 each; every one of the seven waits for the one before, 2–4 µs before any work. Splitting further, deeper steps and "
    "weights in flight earlier are in docs/performance.md; the target wants 37 µs a layer.",
}


def note(name: str) -> str | None:
    """The note on a row."""
    keys = [key for key in NOTES if name.startswith(key)]
    return NOTES[max(keys, key=len)] if keys else None
