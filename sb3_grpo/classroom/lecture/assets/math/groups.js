const groupsOf = (size, values) => Array.from({ length: values.length / size }, (_, i) => values.slice(i * size, (i + 1) * size));

// Advantages of all members. scale: 0 of the group, 1 of the batch, 2 none
M.group = (size, ddof, leaveOneOut, scale, ...rewards) => {
  const byGroup = groupsOf(size, rewards).map(deviations);
  const ofBatch = spread(byGroup.flat(), ddof);
  return byGroup.flatMap((deviation) => {
    const divisor = scale === 2 ? 1 : (scale === 1 ? ofBatch : spread(deviation, ddof)) + 1e-8;
    return deviation.map((d) => (d * (leaveOneOut ? size / (size - 1) : 1)) / divisor);
  });
};

// Of each group 1 if there is something to learn, 0 if it is dead
M.live = (size, ...rewards) => groupsOf(size, rewards).map((values) => (allSame(values) ? 0 : 1));
