"""What each study decides, in the paragraph that its report opens with; m, alpha and beta are filled in."""

DEMAND_RESPONSE = (
    "Every hour a data center sees the shortage y of its renewable supply (the context) and chooses how much load x to shed (the "
    "action), at once and not knowing the hours to come. The hour costs 1/2 (x - y)^2 for the miss and alpha/2 (x - previous x)^2"
    " for the change, with alpha = {alpha:g}: a change is {alpha:g} times worse than a miss of the same size. The miss has "
    "curvature m = {m:g}, and the change is weighed alike in every direction, beta = alpha. Figures show power; costs are in "
    "squares of the scaled contexts."
)
RIGHT_SIZING = (
    "Every hour a cluster sees its workload y in thousands of requests per second (the context) and chooses how many racks x of "
    "each kind are on (the action), at once and not knowing the hours to come. The hour costs energy and delay, a convex function"
    " of x with curvature at least m = {m:.3g}, and starting or stopping racks costs (x - previous x)' Q (x - previous x), with "
    "curvatures between alpha = {alpha:.3g} and beta = {beta:.3g}. Costs are in dollars."
)
