"""Draws docs/algorithms/group.svg: start, group of episodes, advantages, loss."""
W, H = 860, 270
out = []
def add(s): out.append(s)
def text(x, y, s, size=13, weight="normal", anchor="middle", fill="#222"):
    add(f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" fill="{fill}">{s}</text>')
def arrow(x1, x2, y):
    add(f'<line x1="{x1}" y1="{y}" x2="{x2 - 8}" y2="{y}" stroke="#555" stroke-width="2"/>')
    add(f'<path d="M{x2 - 9},{y - 5} L{x2},{y} L{x2 - 9},{y + 5} Z" fill="#555"/>')
add(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {W} {H}" role="img" font-family="sans-serif">')
add("<title>One group of an update</title>")
add("<desc>From one start, four episodes are played. Their returns minus the mean of the group are the advantages, which weigh the loss.</desc>")
add(f'<rect width="{W}" height="{H}" rx="10" fill="#fff" stroke="#ccc"/>')
titles = [(75, "Start"), (300, "Group of G episodes"), (565, "Advantages"), (765, "Loss")]
for x, t in titles:
    text(x, 34, t, 16, "bold")
# start
add('<circle cx="75" cy="135" r="17" fill="#0072B2"/>')
text(75, 140, "s", 15, "bold", fill="#fff")
text(75, 245, "a seed, or a", 12, fill="#555"); text(75, 260, "captured state", 12, fill="#555")
# episodes
ys = [68, 113, 158, 203]
ends = [430, 385, 415, 325]
returns = [9, 7, 8, 4]
for i, (y, e, r) in enumerate(zip(ys, ends, returns)):
    add(f'<path d="M94,135 C130,135 130,{y} 170,{y}" fill="none" stroke="#0072B2" stroke-width="2"/>')
    add(f'<line x1="170" y1="{y}" x2="{e}" y2="{y}" stroke="#0072B2" stroke-width="2"/>')
    n = (e - 170) // 32
    for k in range(n + 1):
        add(f'<circle cx="{170 + k * (e - 170) / n:.0f}" cy="{y}" r="4.5" fill="#56B4E9" stroke="#0072B2"/>')
    text(460, y + 5, f"R = {r}", 14)
text(300, 245, "sampled actions, whole episodes,", 12, fill="#555"); text(300, 260, "no value network", 12, fill="#555")
# advantages: bars around the mean 7
arrow(487, 515, 135)
zero = 575
add(f'<line x1="{zero}" y1="52" x2="{zero}" y2="220" stroke="#555" stroke-dasharray="4 3"/>')
for y, r in zip(ys, returns):
    a = r - 7
    width = abs(a) * 17
    colour = "#009E73" if a > 0 else "#D55E00"
    if a:
        add(f'<rect x="{zero if a > 0 else zero - width}" y="{y - 9}" width="{width}" height="18" fill="{colour}"/>')
    sign = f"+{a}" if a > 0 else (f"&#8722;{-a}" if a < 0 else "0")
    text(zero + (width + 16 if a >= 0 else 18), y + 5, sign, 14)
text(565, 245, "R minus the mean", 12, fill="#555"); text(565, 260, "of the group (7)", 12, fill="#555")
# loss
arrow(645, 673, 135)
add('<rect x="685" y="80" width="160" height="110" rx="8" fill="#f4f4f4" stroke="#bbb"/>')
text(765, 108, "more of what was", 13); text(765, 126, "better than the group,", 13)
text(765, 150, "less of what was worse;", 13); text(765, 172, "ratios are clipped", 13)
text(765, 245, "minibatches, as in PPO", 12, fill="#555")
add("</svg>")

pathlib.Path(__file__).with_name("group.svg").write_text("\n".join(out) + "\n")
