// The arithmetic of the widgets, one function each: numbers in, an array of numbers out. It is compared with the package's.
const M = {};

// All products of the axes, the last one fastest
function* grid(axes) {
  const index = axes.map(() => 0);
  while (true) {
    yield axes.map((axis, d) => axis[index[d]]);
    let d = axes.length - 1;
    while (d >= 0 && ++index[d] === axes[d].length) index[d--] = 0;
    if (d < 0) return;
  }
}

// The largest difference from the golden values, in units of max(1, |value|)
function compare(name, golden) {
  let worst = 0, n = 0;
  for (const args of grid(golden.axes)) {
    const values = M[name](...args);
    golden.values[n++].forEach((value, i) => {
      const difference = Math.abs(values[i] - value) / Math.max(1, Math.abs(value));
      worst = difference <= worst ? worst : difference;
    });
  }
  return { name, n, worst };
}
