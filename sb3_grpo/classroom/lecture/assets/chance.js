// Random numbers that are the same on every machine: mulberry32, and normal ones from it
function chance(seed) {
  let state = seed | 0;
  const uniform = (low = 0, high = 1) => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return low + (high - low) * (((t ^ (t >>> 14)) >>> 0) / 4294967296);
  };
  const normal = () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform());
  const below = (n) => Math.floor(n * uniform());
  return { uniform, normal, below };
}
