// Arithmetic of the widgets and of the agents that learn in the page. Tests compare it with PyTorch's and the package's.
const M = {};
const sum = (values) => values.reduce((total, value) => total + value, 0);
const meanOf = (values) => sum(values) / values.length;
const allSame = (values) => values.every((value) => value === values[0]);
// How far each is from the mean; exactly 0 where all are equal
const deviations = (values) => { const mean = allSame(values) ? values[0] : meanOf(values); return values.map((value) => value - mean); };
const spread = (deviation, ddof = 1) => Math.sqrt(sum(deviation.map((d) => d * d)) / Math.max(deviation.length - ddof, 1));
