"""stub replaced below"""
def write_report(params, run, report):
    run.report.write_text("")
